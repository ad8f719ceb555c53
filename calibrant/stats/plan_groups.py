"""Which columns of the table `plan` belong together, for pages that show them with who decided."""

from typing import Final

# Name of the group, the column that names the rule which decided it, and its parameters.
PLAN_GROUPS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("quantized", "enabled_decided_by", ("enabled", "reason", "not_applied")),
    (
        "data",
        "data_decided_by",
        (
            "data_algorithm", "data_bits", "max_percentile", "min_percentile", "search_range_start", "search_range_end",
            "search_step", "num_of_bins", "float16_step", "batch_num", "joint",
        ),
    ),
    ("offset of the data", "asymmetric_decided_by", ("asymmetric",)),
    ("weight", "weight_decided_by", ("weight_algorithm", "weight_bits", "channel_wise", "num_steps", "num_of_iteration")),
    ("offset of the weight", "weight_asymmetric_decided_by", ("weight_asymmetric",)),
    ("weight alone", "weight_only_decided_by", ("weight_only",)),
    ("balancer", "balancer_decided_by", ("migration_strength",)),
    ("fusion", "fusion_decided_by", ("do_fusion",)),
)  # fmt: skip
