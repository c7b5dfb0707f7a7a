"""Data sets, ways to divide them over clients, and kinds of devices, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from cutlayer.registry.models import LEAF
from cutlayer.registry.own import imported
from cutlayer.registry.part import Part, Takes

FOLDER_VARIABLE = "CUTLAYER_DATA"
"""The environment variable that names the folder of data sets."""
OWN = "own"
"""The name of the task that reads a user's own data."""
SMALL = {"batch_size": 8, "rounds": 20}  # defaults where a client may have only a few rows
BENCH = "Li et al. (NIID-Bench), ICDE 2022"


@dataclass(frozen=True)
class Task:
    """A named data set, and the model, the cut and other settings that are its defaults."""

    line: str
    source: str
    model: str
    cut: int
    defaults: Mapping[str, Any] = field(default_factory=dict)
    load: Callable[..., Any] | str | None = None  # of a task from outside this package: what returns its rows

    @classmethod
    def own(cls, maker: Callable[..., Any] | str, line: str) -> Task:
        """Return an entry for a task from outside this package."""
        return cls(line, "-", "mlp", 0, SMALL, maker)

    @property
    def maker(self) -> Callable[[], Any]:
        """What returns the rows of a task from outside this package."""
        return imported(self.load) if isinstance(self.load, str) else cast(Callable[[], Any], self.load)


TASKS: dict[str, Task] = {
    "digits": Task(
        "1,797 handwritten digits, 8x8, 10 classes; no download",
        "Alpaydin and Kaynak, 1998",
        "cnn",
        0,
        SMALL,
    ),
    "mnist": Task("handwritten digits, 28x28, 10 classes", "LeCun et al., 1998", "cnn", 1),
    "fashion_mnist": Task("clothes, 28x28, 10 classes", "Xiao et al., 2017", "cnn", 1),
    "cifar10": Task("photographs, 32x32, 10 classes", "Krizhevsky, 2009", "resnet", 1),
    "cifar100": Task("photographs, 32x32, 100 classes", "Krizhevsky, 2009", "resnet", 1),
    "tiny_imagenet": Task("photographs, 64x64, 200 classes", "Le and Yang, 2015", "resnet18", 2),
    "femnist": Task("handwritten characters by writer, 28x28, 62 classes; no test rows", LEAF, "leaf_cnn", 1),
    "celeba": Task("faces by celebrity, smiling or not, 84x84", LEAF, "celeba_cnn", 1),
    "shakespeare": Task("the next character of 80, by role, 80 symbols; no test rows", LEAF, "leaf_lstm", 1),
    "speech_commands": Task("spoken words by speaker, as 32x32 log-mel pictures", "Warden, 2018", "vgg11", 2),
    OWN: Task("your own: --data FOLDER, FILE.npz or FILE.parquet", "-", "resnet", 1, SMALL),
}

PARTITIONS: dict[str, Part] = {
    "iid": Part("cutlayer.data.partition:IID", "a random split into equal parts", "-", about={}),
    "dirichlet": Part(
        "cutlayer.data.partition:Dirichlet",
        "label skew: each class spread by Dir(gamma)",
        BENCH,
        about={
            "gamma": Takes("FLOAT", 0.2, "evenness, above 0: smaller is more skewed"),
            "balance": Takes("BOOL", True, "whoever holds a fair share gets no more of the remaining classes"),
            "min_size": Takes("INT", 10, "fewest rows of a client, at least 0"),
        },
    ),
    "shards": Part(
        "cutlayer.data.partition:Shards",
        "few classes each: shards of the rows sorted by label",
        "McMahan et al., AISTATS 2017",
        about={"shards": Takes("INT", 2, "shards of a client, at least 1")},
    ),
    "quantity": Part(
        "cutlayer.data.partition:QuantitySkew",
        "one mixture, sizes by Dir(gamma)",
        BENCH,
        about={
            "gamma": Takes("FLOAT", 0.5, "evenness of the sizes, above 0: smaller is less equal"),
            "min_size": Takes("INT", 1, "fewest rows of a client, at least 0"),
        },
    ),
    "natural": Part(
        "cutlayer.data.partition:Natural",
        "each client is one natural owner, such as a writer",
        LEAF,
        about={
            "min_size": Takes("INT", 32, "owners with fewer rows are left out, at least 1"),
            "max_size": Takes("INT", None, "rows of an owner, at most: of more, its first are taken (default: all)"),
        },
    ),
    "file": Part(
        "cutlayer.data.partition_file:FromFile",
        "as a file says (path): cutlayer's, Flower's, FL-bench's, or lists of rows",
        "-",
        about={"path": Takes("TEXT", "", "the file that says who holds which rows")},
    ),
}

PROFILES: dict[str, str] = {
    "alike": "every client the median of lognormal",
    "lognormal": "a guess at phones: 6.1 Mbit/s in the middle, speeds lognormal and clipped",
    "3g": "333 phones' processors, on measured 3G",
    "lte": "the same phones, on measured 4G",
    "5g": "the same phones, on measured 5G (non-standalone, low band)",
    "5g-sa": "the same phones, on measured 5G (standalone, low band)",
    "5g-mmwave": "the same phones, on measured 5G (millimetre waves)",
}
