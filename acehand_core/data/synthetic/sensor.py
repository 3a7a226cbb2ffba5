"""From light to bytes: exposure, white balance, vignetting, noise. All from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.types import ImageRgb

_GAMMA = 2.2


@dataclass(frozen=True, slots=True)
class Sensor:
    """How one clip is exposed.

    ``shutter``: share of the frame time during which light is gathered, for motion blur. ``gain``:
    exposure about 1, drifting by ``drift`` over the clip. ``balance``: gains of red and blue.
    ``shot`` and ``read``: noise that grows with the light, and noise that does not (0..1).
    """

    shutter: float = 0.3
    gain: float = 1.0
    drift: float = 0.0
    balance: tuple[float, float] = (1.0, 1.0)
    vignette: float = 0.0
    shot: float = 0.01
    read: float = 0.004

    @classmethod
    def random(cls, rng: np.random.Generator) -> Sensor:
        """Return a plausible sensor."""
        return cls(
            shutter=float(rng.choice([0.1, 0.25, 0.5, 0.8])),
            gain=float(np.exp(rng.normal(0.05, 0.22))),
            drift=float(rng.normal(0, 0.12)),
            balance=(float(np.exp(rng.normal(0, 0.06))), float(np.exp(rng.normal(0, 0.08)))),
            vignette=float(rng.uniform(0, 0.35)),
            shot=float(rng.uniform(0.002, 0.03)),
            read=float(rng.uniform(0.001, 0.012)),
        )

    def expose(
        self, picture: Float[np.ndarray, "H W 3"], progress: float, rng: np.random.Generator
    ) -> ImageRgb:
        """Return the picture (0..255, display values) as this sensor gives it.

        ``progress``: 0 at the clip's first frame, 1 at its last.
        """
        light = (picture / 255.0) ** _GAMMA
        light *= self.gain * np.exp(self.drift * (progress - 0.5))
        light *= np.array([self.balance[0], 1.0, self.balance[1]])
        height, width = picture.shape[:2]
        rows, columns = np.indices((height, width))
        radius = np.hypot((rows / (height - 1)) - 0.5, (columns / (width - 1)) - 0.5) / 0.7071
        light *= (1 - self.vignette * radius**2)[..., None]
        deviation = np.sqrt(self.read**2 + self.shot**2 * np.maximum(light, 0))
        light = light + deviation * rng.standard_normal(light.shape)
        value = np.clip(light, 0, 1) ** (1 / _GAMMA)
        return np.round(255 * value).astype(np.uint8)


#: No blur, no noise, even exposure.
CLEAN = Sensor(0.0, 1.0, 0.0, (1.0, 1.0), 0.0, 0.0, 0.0)
