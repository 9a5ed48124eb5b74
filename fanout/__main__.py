"""`python -m fanout`: the same as the `fanout` command."""

from fanout.cli import main

if __name__ == "__main__":
    main()
