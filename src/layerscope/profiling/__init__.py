"""The main job: corpus × model × metrics → a profile of every layer."""

from layerscope.profiling.config import PRESETS, ProfileConfig
from layerscope.profiling.job import profile
from layerscope.profiling.run import Profile

__all__ = ["PRESETS", "Profile", "ProfileConfig", "profile"]
