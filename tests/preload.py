"""Another clock, disk or resolver for a process: shims in C, compiled by the test and loaded before the C library.

environment = preloaded(tmp_path, CLOCK) | {"SHIM_AHEAD": str(file)}
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The wall clock is ahead by as many seconds as the file named by SHIM_AHEAD says just now. */
int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, at);
    if (which == CLOCK_REALTIME) {
        FILE *file = fopen(getenv("SHIM_AHEAD"), "r");
        long ahead = 0;
        if (file) { if (fscanf(file, "%ld", &ahead) != 1) ahead = 0; fclose(file); }
        at->tv_sec += ahead;
    }
    return result;
}
"""

SLOW_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the path of an open file has SHIM_ONLY in it, if that is set. */
static int is_meant(int descriptor) {
    const char *only = getenv("SHIM_ONLY");
    if (!only) return 1;
    char name[64], path[4096] = "";
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    return readlink(name, path, sizeof path - 1) > 0 && strstr(path, only) != NULL;
}

/* While the file named by SHIM_HELD is there, what is forced to disk waits, and makes the file named by SHIM_WAITS. */
static void wait_for(int descriptor) {
    while (is_meant(descriptor) && access(getenv("SHIM_HELD"), F_OK) == 0) {
        FILE *file = fopen(getenv("SHIM_WAITS"), "w");
        if (file) fclose(file);
        usleep(10000);
    }
}
#define WAIT(name) int name(int descriptor) { \
    wait_for(descriptor); return ((int (*)(int))dlsym(RTLD_NEXT, #name))(descriptor); }
WAIT(fsync)
WAIT(fdatasync)
"""

AWAY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A network disk that is away: while the file named by SHIM_HELD is there, what lies below SHIM_BELOW cannot be opened,
   for the error with the number SHIM_ERROR. */
int open64(const char *path, int flags, ...) {
    static int (*real)(const char *, int, ...);
    if (!real) real = dlsym(RTLD_NEXT, "open64");
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    const char *below = getenv("SHIM_BELOW");
    if (strncmp(path, below, strlen(below)) == 0 && access(getenv("SHIM_HELD"), F_OK) == 0) {
        errno = atoi(getenv("SHIM_ERROR"));
        return -1;
    }
    return real(path, flags, mode);
}
"""

HELD_FOLDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

/* A disk that hangs: while the file named by SHIM_HELD is there, whoever touches a path that begins with SHIM_FOLDER
   waits, and says so by making SHIM_WAITS. */
static void wait_for(const char *path) {
    const char *folder = getenv("SHIM_FOLDER");
    if (!path || !folder || strncmp(path, folder, strlen(folder))) return;
    static int (*real)(const char *, int);
    if (!real) real = dlsym(RTLD_NEXT, "access");
    while (real(getenv("SHIM_HELD"), F_OK) == 0) {
        FILE *file = fopen(getenv("SHIM_WAITS"), "w");
        if (file) fclose(file);
        usleep(10000);
    }
}
#define WAIT_1(name) int name(const char *path) { \
    wait_for(path); return ((int (*)(const char *))dlsym(RTLD_NEXT, #name))(path); }
#define WAIT_2(name, type) int name(const char *path, type more) { \
    wait_for(path); return ((int (*)(const char *, type))dlsym(RTLD_NEXT, #name))(path, more); }
WAIT_1(unlink)
WAIT_1(rmdir)
WAIT_2(mkdir, mode_t)
WAIT_2(chmod, mode_t)
WAIT_2(stat, struct stat *)
WAIT_2(lstat, struct stat *)
WAIT_2(stat64, struct stat64 *)
WAIT_2(lstat64, struct stat64 *)
WAIT_2(rename, const char *)
WAIT_2(access, int)
int fstatat64(int at, const char *path, struct stat64 *found, int flags) {
    wait_for(path);
    return ((int (*)(int, const char *, struct stat64 *, int))dlsym(RTLD_NEXT, "fstatat64"))(at, path, found, flags);
}
static int opened(const char *name, const char *path, int flags, int mode) {
    wait_for(path);
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name))(path, flags, mode);
}
#define OPEN(name) int name(const char *path, int flags, ...) { \
    va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
    return opened(#name, path, flags, mode); }
OPEN(open)
OPEN(open64)
int bind(int descriptor, const struct sockaddr *address, socklen_t length) {
    if (address->sa_family == AF_UNIX) wait_for(((const struct sockaddr_un *)address)->sun_path);
    return ((int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind"))(descriptor, address, length);
}
"""

SLOW_RESOLVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Name servers that swallow what is sent to them: while the file named by SHIM_HELD is there, each look-up of a name
   that ends in ".held" waits, and says so in a line of SHIM_WAITS. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) real = dlsym(RTLD_NEXT, "getaddrinfo");
    size_t length = node ? strlen(node) : 0;
    if (length > 5 && !strcmp(node + length - 5, ".held") && access(getenv("SHIM_HELD"), F_OK) == 0) {
        FILE *file = fopen(getenv("SHIM_WAITS"), "a");
        if (file) { fprintf(file, "%s\n", node); fclose(file); }
        while (access(getenv("SHIM_HELD"), F_OK) == 0) usleep(10000);
        return EAI_AGAIN;
    }
    return real(node, service, hints, found);
}
"""


def preloaded(folder: Path, source: str) -> dict[str, str]:
    """The environment variables of a process with this shim; skips where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("DOES NOT RUN: there is no C compiler (cc)")
    code, library = folder / "shim.c", folder / "shim.so"
    code.write_text(source, encoding="utf-8")
    subprocess.run(
        [str(compiler), "-shared", "-fPIC", "-O1", "-o", str(library), str(code), "-ldl"], check=True, timeout=60
    )
    return {"LD_PRELOAD": str(library)}
