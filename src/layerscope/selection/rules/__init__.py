"""Label-free rules, one file each. A new rule is a new file that registers itself."""

from layerscope.selection.rules.base import Answer, Registered, Rule, get_rule, register, rules

__all__ = ["Answer", "Registered", "Rule", "get_rule", "register", "rules"]
