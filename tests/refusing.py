"""Processes to which the operating system refuses something: calls through a shim, users and mounts for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.preload import preloaded

REFUSING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* SHIM_REFUSES is "call=error call=error": these calls fail with these numbers. */
static int refused(const char *call) {
    char *all = getenv("SHIM_REFUSES"), name[64];
    strcat(strcpy(name, call), "=");
    char *found = all ? strstr(all, name) : NULL;
    if (found) errno = atoi(found + strlen(name));
    return found != NULL;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

int flock(int descriptor, int operation) { REAL(flock); return refused("flock") ? -1 : real(descriptor, operation); }
int link(const char *from, const char *to) { REAL(link); return refused("link") ? -1 : real(from, to); }
int symlink(const char *from, const char *to) { REAL(symlink); return refused("symlink") ? -1 : real(from, to); }
int memfd_create(const char *name, unsigned int flags) {
    REAL(memfd_create);
    return refused("memfd_create") ? -1 : real(name, flags);
}
int bind(int descriptor, const struct sockaddr *address, socklen_t size) {
    REAL(bind);
    if (address->sa_family == AF_UNIX && refused("bind_unix") && strstr(address->sa_data, getenv("SHIM_BELOW")))
        return -1;
    return real(descriptor, address, size);
}
int fsync(int descriptor) {
    REAL(fsync);
    struct stat about;
    if (fstat(descriptor, &about) == 0 && S_ISDIR(about.st_mode) && refused("fsync_folder")) return -1;
    return real(descriptor);
}
"""


def refusing(folder: Path, below: Path | None = None, **calls: int) -> dict[str, str]:
    """The environment of a process whose `calls` fail with these errors; bind_unix only within the folder `below`."""
    said = " ".join(f"{call}={number}" for call, number in calls.items())
    return preloaded(folder, REFUSING) | {"SHIM_REFUSES": said, "SHIM_BELOW": str(below or folder)}


def as_nobody(*, reads_all: bool = True) -> list[str]:
    """A prefix for a command that runs it as a user whom the system does not know; skips where that cannot be.

    Unless that user `reads_all` files, it cannot use an interpreter in root's home.
    """
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("DOES NOT RUN: only root can be somebody else, with setpriv")
    argv = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]
    argv += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"] if reads_all else []
    runs = [*argv, "sh", "-c", 'exec "$0" -c ""', sys.executable]
    if subprocess.run(runs, capture_output=True, check=False).returncode:
        pytest.skip("DOES NOT RUN: this interpreter cannot be used by another user")
    return argv


def in_mounts(script: str, after: str = "") -> list[str]:
    """A prefix for a command that runs it with the mounts that `script` makes, and then `after`."""
    return in_namespaces("-m", script, after)


def in_namespaces(flags: str, script: str, after: str = "") -> list[str]:
    """A prefix for a command that runs it in namespaces of its own (flags of `unshare`), set up by `script`.

    `after` are commands for when it has ended. Skips where that cannot be.
    """
    made = ["unshare", flags, "sh", "-ec"]
    if not shutil.which("unshare") or subprocess.run([*made, script], capture_output=True, check=False).returncode:
        pytest.skip(f"DOES NOT RUN: `unshare {flags}` cannot be used (root, unshare)")
    runs = f'"$0" "$@" || code=$?\n{after}\nexit ${{code:-0}}' if after else 'exec "$0" "$@"'
    return [*made, f"{script}\n{runs}"]
