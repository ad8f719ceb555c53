"""`python -m calibrant` and the `calibrant` command."""

from calibrant.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
