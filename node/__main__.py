"""`python -m shoal.node` is the `shoal` command, also where no script is on the PATH."""

from shoal.node.client.cli import main

if __name__ == "__main__":
    main()
