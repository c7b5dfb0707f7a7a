"""SMoFi (Yang et al., extended version): tables 1 to 5, figures 1 and 3 to 11. (Figure 2 is a drawing, table 6 a list
of symbols.)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cutlayer.experiment import config as text
from cutlayer.experiment.methods import Method
from cutlayer.experiment.presets.smofi import MODELS, PRESETS, TUNED
from cutlayer.reproduce.item import Cell, Item, Target

PAPER = "smofi"
FEDAVG, SMOFI = "FedAvg", "SMoFi + FedAvgM"
IMAGES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny": "Tiny-ImageNet"}
CLIENTS = {"cifar10": 100, "cifar100": 100, "tiny": 200}
SKEWED = {task: f"{name}/Dir{CLIENTS[task]}(0.2)" for task, name in IMAGES.items()}
ALPHAS = (-0.01, -0.1, -1.0, -10.0)
BETAS = (0.1, 0.2, 0.3, 0.4, 0.5)
RANGES = ((0, 3), (4, 7), (8, 13), (14, 16))  # of the cut, on Tiny-ImageNet
NAMES = {"vgg11": "VGG-11", "vgg16": "VGG-16", "mobilenetv2": "MobileNetV2", "resnet18": "ResNet-18"}
NAMES |= {"resnet34": "ResNet-34", "densenet121": "DenseNet-121", "densenet169": "DenseNet-169"}
FULL = "+ SMoFi is fusion and FedAvgM's global momentum, as in the paper: SMoFi + FedAvgM in all other tables here."
CUT = "The paper gives the cut, 2, for ResNet-18 on CIFAR-10 alone; it is 2 everywhere here."
FIXED = "SlowMo, FedNAG and MergeSFL take a fixed number of steps, the mean of the others', as the paper says."


def _values(preset: str, m: Method, **more: Any) -> Mapping[str, Any]:
    return text.merge(text.merge(PRESETS[preset].comparison.base, m.changes), more)


def _method(preset: str, label: str) -> Method:
    return next(m for m in PRESETS[preset].comparison.methods if m.label == label)


def _cell(preset: str, panel: str, label: str, **more: Any) -> Cell:
    """Return a method of a preset in a row of its label."""
    return Cell(panel, label, _values(preset, _method(preset, label), **more), FEDAVG)


def _column(preset: str, panel: str) -> list[Cell]:
    """Return the momentum methods of a preset, in blocks: FedAvg, + FedAvgM, ..., FedProx, + FedAvgM, ..."""
    found = []
    for m in PRESETS[preset].comparison.methods:
        block = m.baseline or FEDAVG
        if m.name.startswith(("sfl", "merge")):
            continue
        short = m.label.removeprefix(f"{block} + ").replace(SMOFI, "SMoFi")
        row = short if short == block else f"+ {short}"
        found.append(Cell(panel, row, _values(preset, m), block))
    return found


def _split(task: str) -> list[Cell]:
    """Return a column of table 2. SFLV2's simulated time is counted in two ways, from the same runs."""
    preset, panel, block = f"smofi-{task}", SKEWED[task], "split FL"
    rows = {"SFLV1 (step)": "SFLV1 (τ = 1)", "SFLV1 (epoch)": "SFLV1 (τ = E)", "SFLV2": "SFLV2"}
    rows |= {"SFLV2 (reset each round)": "SFLV2 (reset each round)", "MergeSFL": "MergeSFL", SMOFI: "SMoFi"}
    cells = [Cell(panel, FEDAVG, _values(preset, _method(preset, FEDAVG)), block, hidden=True)]
    for label, row in rows.items():
        cells.append(Cell(panel, row, _values(preset, _method(preset, label)), block))
        if label == "SFLV2":
            timed = _values(preset, _method(preset, label), sequential="paper_like")
            cells.append(Cell(panel, "SFLV2 (time as in the paper)", timed, block))
    return cells


def _against(task: str, panel: str, points: Mapping[str, tuple[float, Mapping[str, Any]]]) -> list[Cell]:
    """Return SMoFi at several points of an axis, and FedAvg as a line."""
    preset = f"smofi-{task}"
    line = _cell(preset, panel, FEDAVG)
    smofi = _method(preset, SMOFI)
    cells = []
    for row, (x, more) in points.items():
        cells.append(Cell(panel, row, text.merge(_values(preset, smofi), more), FEDAVG, x))
    return [line, *cells]


def _alphas(task: str) -> list[Cell]:
    points = {f"alpha = {a:g}": (a, {"scheme": {"alpha": a}}) for a in ALPHAS}
    return _against(task, f"{IMAGES[task]}, staleness alpha", points)


def _cuts(task: str, deepest: int) -> list[Cell]:
    return _against(task, f"{IMAGES[task]}, cut L", {f"L = {L}": (float(L), {"cut": L}) for L in range(deepest + 1)})


def _ranges(task: str) -> list[Cell]:
    points = {f"L in [{low}, {high}]": (float(low), {"cut": [low, high]}) for low, high in RANGES}
    return _against(task, f"{IMAGES[task]}, cut L", points)


def _betas(task: str) -> Iterator[Cell]:
    """Return a column of figure 10: SMoFi and FedAvgM under several global momenta."""
    preset, panel = f"smofi-{task}", IMAGES[task]
    yield replace(_cell(preset, panel, FEDAVG), hidden=True)
    for label, row in (("FedAvgM", "FedAvgM"), (SMOFI, "SMoFi")):
        for beta in BETAS:
            values = _values(preset, _method(preset, label), update={"beta": beta})
            yield Cell(panel, row, values, FEDAVG, beta)


def _ablated(task: str) -> list[Cell]:
    """Return a panel of figure 11, with the task's own global momentum."""
    preset, panel, g = f"smofi-{task}", IMAGES[task], {"name": "fedavgm", "beta": TUNED[task].beta_g}
    full = _values(preset, _method(preset, SMOFI))
    return [
        Cell(panel, "SMoFi", full, FEDAVG),
        Cell(panel, "SMoFi w/o global momentum", text.merge(full, {"update": "fedavg"}), FEDAVG),
        Cell(panel, "SMoFi w/o momentum alignment", _values(preset, _method(preset, FEDAVG), update=g), FEDAVG),
    ]


def _momenta() -> Iterator[Cell]:
    """Return the lines of figure 1."""
    for gamma, words in ((0.5, "moderate"), (0.2, "extreme")):
        for beta in (0.0, 0.9):
            more = {"optimizer": {"momentum": beta}, "partition": {"name": "dirichlet", "gamma": gamma}}
            values = text.merge(_values("smofi-cifar10", _method("smofi-cifar10", FEDAVG)), more)
            yield Cell("CIFAR-10", f"Dir({gamma:g}), {words}: momentum {beta:g}", values, FEDAVG)


TABLE_1 = tuple(cell for task in IMAGES for cell in _column(f"smofi-{task}", SKEWED[task]))
MIXED = (("dir0.5", "Dir{}(0.5)"), ("iid", "IID{}"))
TABLE_3 = tuple(
    cell
    for name, words in MIXED
    for task in IMAGES
    for cell in _column(f"smofi-{task}-{name}", f"{IMAGES[task]}/{words.format(CLIENTS[task])}")
)
OPTIMIZERS = {"SGDM": "smofi-cifar100"} | {n: f"smofi-cifar100-{n.lower()}" for n in ("NAG", "Adam", "AdamW")}
FIGURE_4 = tuple(
    cell for panel, preset in OPTIMIZERS.items() for cell in _column(preset, panel) if cell.block == FEDAVG
)
FIGURE_5 = tuple(cell for model in MODELS for cell in _column(f"smofi-tiny-{model}", NAMES[model]))
ACCURACY = ("accuracy", "rounds", "speedup")
ADAM = (
    "Adam and AdamW have no weight decay in the paper, so they are one algorithm; FedNAG under Adam averages both "
    "moments, which the paper does not define."
)
FIGURE_10 = {"CIFAR-10": (0.70, 0.7716), "CIFAR-100": (0.43, 0.4810), "Tiny-ImageNet": (0.30, 0.3343)}
VGG = "VGG has batch norm and a small head here; the paper does not say."
GAMMAS = "The figure names neither data set nor concentration: CIFAR-10, Dir(0.5) and Dir(0.2) are our choice."
NO_NUMBERS = "The paper's figure is a picture without numbers, so there is nothing to print beside ours."

ITEMS = (
    Item(PAPER, "table-1", "momentum methods on three baselines", "table", ACCURACY, TABLE_1, notes=(FULL, CUT, FIXED)),
    Item(
        PAPER,
        "table-2",
        "split learning methods, with time to accuracy",
        "table",
        ("accuracy", "rounds", "hours"),
        tuple(cell for task in IMAGES for cell in _split(task)),
        notes=(
            "SMoFi is fusion and FedAvgM's global momentum. T is simulated, on our guess at the paper's devices.",
            "SFLV2 waits for one client after another (strict); the paper's times fit a server that alone works in "
            "sequence. Its server's optimizer is reset at each step, as the poster says, or at each round.",
            CUT,
        ),
    ),
    Item(
        PAPER,
        "table-3",
        "moderately skewed and even data",
        "table",
        ACCURACY,
        TABLE_3,
        across=3,
        notes=(FULL, CUT, FIXED),
    ),
    Item(
        PAPER,
        "table-4",
        "10, 20 and 30 clients a round, Tiny-ImageNet",
        "table",
        ACCURACY,
        tuple(cell for m in (10, 20, 30) for cell in _column(f"smofi-tiny-{m}", f"|J^n| = {m}")),
        notes=(FULL, CUT, FIXED),
    ),
    Item(
        PAPER,
        "table-5",
        "text and speech",
        "table",
        ACCURACY,
        (
            *_column("smofi-shakespeare", "Shakespeare"),
            *_column("smofi-speech", "Google Speech/Dir200(0.2)"),
        ),
        notes=(
            FULL,
            "The paper gives no number of rounds here: 300 at its scale. The fixed T of Speech, 15 steps, is a fifth "
            "of the steps that five epochs are: its SlowMo and FedNAG do a fifth of the others' work. At laptop scale "
            "T is the mean of the others' steps.",
        ),
    ),
    Item(
        PAPER,
        "figure-1",
        "local momentum under skew",
        "curves",
        ("accuracy",),
        tuple(_momenta()),
        notes=(GAMMAS, NO_NUMBERS),
    ),
    Item(
        PAPER,
        "figure-3",
        "sensitivity to alpha and to the cut, CIFAR-10",
        "sweep",
        ("accuracy", "rounds"),
        (*_alphas("cifar10"), *_cuts("cifar10", 8)),
        notes=(NO_NUMBERS, "The paper's alpha go from -0.01 to -10; the points between are ours."),
    ),
    Item(
        PAPER,
        "figure-4",
        "four optimizers, CIFAR-100",
        "curves",
        ("accuracy",),
        FIGURE_4,
        notes=(FULL, ADAM, NO_NUMBERS),
    ),
    Item(
        PAPER,
        "figure-5",
        "seven models, Tiny-ImageNet",
        "bars",
        ("accuracy", "rounds"),
        FIGURE_5,
        Target(share=1.0),
        notes=(FULL, VGG, NO_NUMBERS),
    ),
    Item(
        PAPER,
        "figure-6",
        "data and devices of the clients",
        "measured",
        make="cutlayer.reproduce.measured:heterogeneity",
        data=("cifar10", "cifar100", "tiny_imagenet"),
    ),
    Item(
        PAPER,
        "figure-7",
        "learning curves of table 1",
        "curves",
        ("accuracy",),
        TABLE_1,
        notes=(FULL, CUT, NO_NUMBERS),
    ),
    Item(
        PAPER,
        "figure-8",
        "learning curves of figure 5",
        "curves",
        ("accuracy",),
        FIGURE_5,
        notes=(FULL, VGG, NO_NUMBERS),
    ),
    Item(
        PAPER,
        "figure-9",
        "sensitivity to alpha and to the cut, CIFAR-100 and Tiny-ImageNet",
        "sweep",
        ("accuracy", "rounds"),
        (*_alphas("cifar100"), *_cuts("cifar100", 8), *_alphas("tiny"), *_ranges("tiny")),
        notes=(NO_NUMBERS, "On Tiny-ImageNet the cut is drawn anew in each round, from a range."),
    ),
    Item(
        PAPER,
        "figure-10",
        "sensitivity to the global momentum",
        "sweep",
        ("accuracy", "rounds"),
        tuple(cell for task in IMAGES for cell in _betas(task)),
        Target(
            fixed={panel: target for panel, (target, _) in FIGURE_10.items()},
            shares={panel: target / best for panel, (target, best) in FIGURE_10.items()},
        ),
        axis="β_g",
        notes=(
            NO_NUMBERS,
            "The targets are 70, 43 and 30 % at the paper's scale, and else the same shares of FedAvg's best.",
        ),
    ),
    Item(
        PAPER,
        "figure-11",
        "ablation: fusion and global momentum",
        "curves",
        ("accuracy",),
        tuple(cell for task in IMAGES for cell in _ablated(task)),
        notes=(NO_NUMBERS, "Without alignment, SMoFi is FedAvgM with SMoFi's global momentum."),
    ),
)
