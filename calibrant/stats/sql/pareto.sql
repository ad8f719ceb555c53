-- Accuracy against the share of MACs in int8: the steps of the last `calibrant auto`, and those that no other beats in both
with steps as (
    select *, case when higher_is_better then value else -value end as goodness
    from auto_steps
)
select
    step, fit, layers_float, round(100 * (1 - macs_float), 2) as macs_int8_percent, metric, value, low, high, ok,
    not exists (
        select 1
        from steps other
        where other.macs_float <= s.macs_float and other.goodness >= s.goodness
          and (other.macs_float < s.macs_float or other.goodness > s.goodness)
    ) as on_front,
    chosen
from steps s
order by macs_float, step
