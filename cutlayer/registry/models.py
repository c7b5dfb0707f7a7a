"""Models by name."""

from __future__ import annotations

from cutlayer.registry.part import Part, Takes

HE, LEAF = "He et al., CVPR 2016", "Caldas et al. (LEAF), 2018"
VGG, DENSE = "Simonyan and Zisserman, ICLR 2015", "Huang et al., CVPR 2017"
NORM = Takes("{bn,gn}", "bn", "batch norm, or group norm")
STEM = Takes("{imagenet,cifar}", "imagenet", "first layers for large pictures, or for 32x32")
HEADS = {
    "head": Takes("{small,original}", "small", "one linear layer at the end, or the original three"),
    "norm": Takes("{bn,none}", "bn", "batch norm, or none"),
}
GROWTH = {"growth": Takes("INT", 32, "channels that a layer adds, at least 1")}
SYMBOLS = Takes("INT", 80, "symbols of the text, at least 1")


def _width(default: int, what: str) -> Takes:
    return Takes("INT", default, f"{what}, at least 1")


FIRST = "channels of the first layer"
RESNET = {"stem": STEM, "norm": NORM, "width": _width(64, FIRST)}

MODELS: dict[str, Part] = {
    "mlp": Part(
        "cutlayer.models.mlp:mlp",
        "three hidden layers (depth); 4 blocks",
        "-",
        about={"width": _width(64, "neurons of a hidden layer"), "depth": _width(3, "hidden layers")},
    ),
    "cnn": Part(
        "cutlayer.models.cnn:cnn",
        "three 3x3 convolutions; 4 blocks",
        "-",
        about={"width": _width(16, FIRST)},
    ),
    "resnet": Part(
        "cutlayer.models.resnet:resnet",
        "three residual blocks with batch or group norm; 5 blocks",
        HE,
        about={"width": _width(16, FIRST), "norm": NORM},
    ),
    "resnet18": Part(
        "cutlayer.models.resnet:resnet18",
        "ResNet-18: stem for ImageNet or CIFAR, batch or group norm; 10 blocks",
        HE,
        about=RESNET,
    ),
    "resnet34": Part("cutlayer.models.resnet:resnet34", "ResNet-34, the same; 18 blocks", HE, about=RESNET),
    "resnet9": Part(
        "cutlayer.models.resnet9:resnet9",
        "two residual blocks among wide convolutions, for 32x32; 7 blocks",
        "CycleSL, 2025",
        about={"width": _width(64, FIRST)},
    ),
    "vgg11": Part(
        "cutlayer.models.vgg:vgg11",
        "VGG-11 with a small or the original head, with or without batch norm; 9 blocks",
        VGG,
        about={**HEADS, "width": _width(64, FIRST)},
    ),
    "vgg16": Part(
        "cutlayer.models.vgg:vgg16", "VGG-16, the same; 14 blocks", VGG, about={**HEADS, "width": _width(64, FIRST)}
    ),
    "mobilenetv2": Part(
        "cutlayer.models.mobilenet:mobilenetv2",
        "MobileNetV2: 17 inverted residuals; 19 blocks",
        "Sandler et al., CVPR 2018",
        about={"width": _width(32, FIRST)},
    ),
    "densenet121": Part(
        "cutlayer.models.densenet:densenet121",
        "DenseNet-121: four dense blocks, three transitions; 9 blocks",
        DENSE,
        about=GROWTH,
    ),
    "densenet169": Part(
        "cutlayer.models.densenet:densenet169", "DenseNet-169, the same; 9 blocks", DENSE, about=GROWTH
    ),
    "leaf_cnn": Part(
        "cutlayer.models.leaf:leaf_cnn",
        "FEMNIST: two 5x5 convolutions and a wide layer; 4 blocks",
        LEAF,
        about={"hidden": _width(2048, "neurons of the wide layer"), "width": _width(32, FIRST)},
    ),
    "celeba_cnn": Part(
        "cutlayer.models.leaf:celeba_cnn",
        "CelebA: four 3x3 convolutions with batch norm; 5 blocks",
        LEAF,
        about={"width": _width(32, "channels of each convolution")},
    ),
    "leaf_lstm": Part(
        "cutlayer.models.leaf:leaf_lstm",
        "Shakespeare: a two-layer LSTM over characters; 3 blocks",
        LEAF,
        about={
            "vocabulary": SYMBOLS,
            "embedding": _width(8, "numbers that stand for a symbol"),
            "hidden": _width(256, "neurons of a layer"),
            "depth": _width(2, "layers"),
        },
    ),
    "transformer": Part(
        "cutlayer.models.transformer:transformer",
        "Shakespeare: six encoder layers (depth); 8 blocks",
        "Li et al., NeurIPS 2023",
        about={
            "vocabulary": SYMBOLS,
            "width": _width(128, "numbers that stand for a symbol"),
            "heads": _width(4, "attention heads; they divide the width"),
            "hidden": _width(512, "neurons of the feed-forward layers"),
            "depth": _width(6, "encoder layers"),
            "dropout": Takes("FLOAT", 0.1, "share of activations set to zero in training, from 0 to below 1"),
        },
    ),
}

PEFTS: dict[str, Part] = {
    "lora": Part(
        "cutlayer.hf.base:LoRA",
        "low-rank adapters beside frozen weights",
        "Hu et al., ICLR 2022",
        about={
            "r": Takes("INT", 8, "rank of an adapter, at least 1"),
            "alpha": Takes("FLOAT", 16.0, "an adapter counts alpha/r times, above 0"),
            "dropout": Takes("FLOAT", 0.0, "share of an adapter's inputs set to zero in training, from 0 to below 1"),
            "targets": Takes("TEXT", "", "modules that get one, q_proj,v_proj (default: those PEFT chooses)"),
            "also": Takes("TEXT", "", "modules that are trained in full (default: the last layer of a classifier)"),
        },
    ),
}


def hugging_face(base: str) -> Part:
    """The entry of a model of transformers: `hf:NAME_OR_PATH`."""
    types = "{float32,bfloat16,float16}"
    about = {"dtype": Takes(types, "float32", "type of the base's weights; adapters are float32")}
    line = "a model of transformers; a block for the embeddings, each layer, and the head"
    return Part("cutlayer.hf.base:load", line, "-", fixed={"base": base}, about=about)
