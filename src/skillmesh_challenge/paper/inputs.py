"""What the paper's figures are made from: its own inputs, and what we had to count or solve for ourselves."""

from __future__ import annotations

TASKS = 102
CLASSES = 5033
TRAIN_IMAGES = 2_041_225
VAL_IMAGES = TEST_IMAGES = 243_464
AGENTS = 51
"""Table 2's caption."""
ALPHA = 1000
"""MACs that sending one byte is worth."""
CLASSES_PER_TASK = CLASSES / TASKS
IMAGES_PER_TASK = TRAIN_IMAGES / TASKS

FEATURES = 2048
FLOAT_BYTES = 4
CLUSTERS = 25
IMAGES_PER_CLASS = 5
"""That a maha teacher sends, by section 4."""
IMAGE_BYTES = 299 * 299 * 3
XCEPTION_PARAMETERS = 22.9e6
STATED_BIASES = 17_472
"""Appendix G's number of biases."""
MAHA_MACS_PER_IMAGE = 250e3
"""Appendix C: of the covariance."""
REPLAYED_PER_CLASS = 10
STATED_IMAGES_PER_CLASS = 254
"""Appendix D."""

# Not in the paper. Tests hold what is Xception's against the network itself.
XCEPTION_COUNTED = 22_855_952
"""Its parameters, with the classifier of 1,000 classes."""
XCEPTION_PASS = 8_355_355_496
"""Products of all its convolutions, for one image of 299 pixels."""
XCEPTION_PASS_PTFLOPS = 8_420_922_000
"""The same with the classifier, norms, activations and pools, as the counter `ptflops` has it (8.42 GMACs)."""
XCEPTION_CHANNELS = 50_312
"""Outputs of all its convolutions, depthwise ones too: one bias each."""
RESNET50_PASS_PTFLOPS = 4.12e9
"""As that counter's own table has it."""
RESNET50_WEIGHTS = 25_502_912
"""Of its convolutions and its classifier of 1,000 classes."""
SUPSUP_MASK_BYTES = 3.00e6
"""What table 2's bytes and efficiency of SUPSUP both come to; where it comes from is not said."""
