"""What can be said of a server, on the command line or to Ray Serve; `serving` itself needs its packages."""

from pydantic import Field

from ray_adaplr.errors import Checked


class ServeOptions(Checked):
    """What is served, where, and how large an image may be."""

    folder: str = Field(min_length=1, description="a run, or a model folder")
    factory: str | None = Field(
        None, description="package.module:function that makes the network, for a folder of your own class"
    )
    ensemble: bool = Field(False, description="the members of the run, whose logits are averaged, not its target model")
    host: str = Field("127.0.0.1", min_length=1, description="address to listen at; 0.0.0.0 lets other machines in")
    port: int = Field(8000, ge=1, le=65535, description="port to listen at")
    replicas: int | None = Field(
        None, ge=1, le=1024, description="default: one per GPU, or where there is none per core"
    )
    max_bytes: int = Field(20_000_000, ge=1, description="largest upload")
    max_pixels: int = Field(50_000_000, ge=1, description="most pixels of an image, by its header")
