"""Data: tasks by name, partitions over clients, and the rows a client holds."""

from __future__ import annotations

from cutlayer.data.partition import IID, Dirichlet, Natural, QuantitySkew, Shards
from cutlayer.data.partition_file import FromFile
from cutlayer.table import Part

PARTITIONS: dict[str, Part] = {
    "iid": Part(IID, "a random split into equal parts", "-"),
    "dirichlet": Part(Dirichlet, "label skew: each class spread by Dir(gamma)", "Li et al. (NIID-Bench), ICDE 2022"),
    "shards": Part(Shards, "few classes each: shards of the rows sorted by label", "McMahan et al., AISTATS 2017"),
    "quantity": Part(QuantitySkew, "one mixture, sizes by Dir(gamma)", "Li et al. (NIID-Bench), ICDE 2022"),
    "natural": Part(Natural, "each client is one natural owner, such as a writer", "Caldas et al. (LEAF), 2018"),
    "file": Part(FromFile, "as a file says (path): .json, .npz, or a published pickle of indices", "-"),
}
