"""The ``kinetic`` command, and ``python -m kinetic``, for where the script is not on the PATH."""


def main() -> None:
    """Import the command and run it; Ctrl-C ends it without a traceback, also while the Tab key waits for it."""
    try:
        from kinetic._cli import main as command  # a tenth of a second

        command.main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
