"""``python -m kinetic`` is the ``kinetic`` command, for where the script is not on the PATH."""

from kinetic._cli.main import main

if __name__ == "__main__":
    main()
