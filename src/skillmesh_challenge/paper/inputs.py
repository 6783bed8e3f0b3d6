"""Inputs of the paper's figures: those it states, and those that we counted or solved for ourselves."""

from __future__ import annotations

TASKS = 102
CLASSES = 5033
TRAIN_IMAGES = 2_041_225
VAL_IMAGES = TEST_IMAGES = 243_464
AGENTS = 51
"""Number of agents, from table 2's caption."""
ALPHA = 1000
"""Cost of sending one byte, in MACs."""
CLASSES_PER_TASK = CLASSES / TASKS
IMAGES_PER_TASK = TRAIN_IMAGES / TASKS

FEATURES = 2048
FLOAT_BYTES = 4
CLUSTERS = 25
IMAGES_PER_CLASS = 5
"""Number of images per class that a maha teacher sends (section 4)."""
IMAGE_BYTES = 299 * 299 * 3
XCEPTION_PARAMETERS = 22.9e6
STATED_BIASES = 17_472
"""Number of biases in appendix G."""
MAHA_MACS_PER_IMAGE = 250e3
"""MACs of the covariance per image (appendix C)."""
REPLAYED_PER_CLASS = 10
STATED_IMAGES_PER_CLASS = 254
"""Mean number of training images per class, as stated in appendix D."""

# Not in the paper. Tests compare Xception's numbers with the network itself.
XCEPTION_COUNTED = 22_855_952
"""Number of Xception's parameters, with the classifier of 1,000 classes."""
XCEPTION_PASS = 8_355_355_496
"""Products of all of Xception's convolutions, for one image of 299 pixels."""
XCEPTION_PASS_PTFLOPS = 8_420_922_000
"""The same with classifier, norms, activations and pools, as `ptflops` counts them (8.42 GMACs)."""
XCEPTION_CHANNELS = 50_312
"""Number of output channels of all Xception's convolutions, including depthwise ones: one bias each."""
RESNET50_PASS_PTFLOPS = 4.12e9
"""MACs of one pass of ResNet-50, from the table of `ptflops`."""
RESNET50_WEIGHTS = 25_502_912
"""Number of weights of ResNet-50's convolutions and its classifier of 1,000 classes."""
SUPSUP_MASK_BYTES = 3.00e6
"""Bytes of a SUPSUP mask that table 2's bytes and efficiency both imply; the paper does not explain them."""
