"""What can be said of a server, on the command line or to Ray Serve; `serving` itself needs its packages."""

from ray_adaplr.errors import Checked, option


class ServeOptions(Checked):
    """What is served, where, and how large an image may be."""

    folder: str = option(..., "a run, or a model folder", min_length=1)
    factory: str | None = option(None, "package.module:function that makes the network, for a folder of your own class")
    ensemble: bool = option(False, "the members of the run, whose logits are averaged, not its target model")
    host: str = option("127.0.0.1", "address to listen at; 0.0.0.0 lets other machines in", min_length=1)
    port: int = option(8000, "port to listen at", ge=1, le=65535)
    replicas: int | None = option(None, "default: one per GPU, or where there is none per core", ge=1, le=1024)
    max_bytes: int = option(20_000_000, "largest upload", ge=1)
    max_pixels: int = option(50_000_000, "most pixels of an image, by its header", ge=1)
