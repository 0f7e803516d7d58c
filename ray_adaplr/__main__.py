"""`python -m ray_adaplr` is `ray-adaplr`."""

from ray_adaplr.cli.main import command

if __name__ == "__main__":
    raise SystemExit(command())
