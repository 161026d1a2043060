"""ResNet-50 on ImageNet by the recipe of the 28-epoch records."""
