"""Entry of `python -m probmargin`, which torchrun uses."""

from probmargin.cli import main

if __name__ == "__main__":
    main()
