"""An image model of the reader's own, and photos in a folder per class."""

from pathlib import Path

import numpy as np
from PIL import Image
from tests.tiny_images import build

build("vit").save_pretrained("my-vit")
rng = np.random.default_rng(0)
for number in range(48):
    folder = Path("photos") / ("cats" if number % 2 else "dogs")
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(
        folder / f"{number}.png"
    )
