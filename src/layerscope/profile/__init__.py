"""The main job: corpus × model × metrics → a profile of every layer."""

from layerscope.profile.config import PRESETS, ProfileConfig
from layerscope.profile.job import profile
from layerscope.profile.run import Run

__all__ = ["PRESETS", "ProfileConfig", "Run", "profile"]
