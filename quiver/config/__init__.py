"""Every setting of a store: one model, frozen, checked once, where it comes in.

::

    Config.load("quiver.yaml")                      # file, then environment
    Config.load(wal={"max_size": "1GiB"})           # arguments win over both
    Config.load(env={}, segment__target_size=4096)  # the same, flat; environment ignored

Precedence: arguments > ``QUIVER_SECTION__NAME`` variables > file > defaults.  Sizes and
durations may be written as people do (``32MiB``, ``25ms``).  Unknown names are refused
with the nearest known one, and every error is a :class:`~quiver.errors.ConfigError` that
names the setting, the value, who set it, and what is allowed.

=============  ==========================================================
sources.py     files, environment and arguments, laid over one another
sections.py    the sections: each setting, its default, bounds and meaning
model.py       the whole: cross-checks, loading, the table of all settings
problems.py    what is wrong, in words
=============  ==========================================================
"""

from quiver.config.model import Config, Setting, setting_names, settings, smallest_cap
from quiver.config.sections import (
    MAX_BUNDLE_BYTES,
    CorruptProgress,
    Deliver,
    Durability,
    Flush,
    IdempotencyConfig,
    LimitsConfig,
    ReadMode,
    RetentionConfig,
    SegmentConfig,
    SizeCapPolicy,
    SubscribersConfig,
    TransactionsConfig,
    Validation,
    Verify,
    WalConfig,
)

__all__ = [
    "Config",
    "WalConfig",
    "SegmentConfig",
    "RetentionConfig",
    "LimitsConfig",
    "IdempotencyConfig",
    "SubscribersConfig",
    "TransactionsConfig",
    "Durability",
    "Deliver",
    "Validation",
    "ReadMode",
    "Verify",
    "Flush",
    "SizeCapPolicy",
    "CorruptProgress",
    "MAX_BUNDLE_BYTES",
    "Setting",
    "settings",
    "setting_names",
    "smallest_cap",
]
