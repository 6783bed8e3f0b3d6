"""Say what is on photos, with a file of `skillmesh export --onnx`: python ask_onnx.py agent.onnx photo.jpg ..."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1])
about = json.loads(session.get_modelmeta().custom_metadata_map["skillmesh"])
size, classes = about["size"], [name for task in about["tasks"] for name in task["classes"]]
for file in sys.argv[2:]:
    (photo := Image.open(file)).draft("RGB", (2 * size, 2 * size))  # decodes large JPEGs smaller, as agents do
    photo = ImageOps.exif_transpose(photo).convert("RGBA")
    photo = Image.alpha_composite(Image.new("RGBA", photo.size, "white"), photo).convert("RGB")
    pixels = np.asarray(photo.resize((size, size), Image.Resampling.BICUBIC))[None]
    label, task, sure, novelty, unknown, unsure = (out[0] for out in session.run(None, {"pixels": pixels}))
    answer = "unknown" if unknown else "not sure" if unsure else classes[label]
    print(file, answer, about["tasks"][task]["name"], sure, novelty, sep="\t")
