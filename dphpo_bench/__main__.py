"""`python -m dphpo_bench` is the command line."""

from dphpo_bench.cli.entry import main

if __name__ == "__main__":
    main()
