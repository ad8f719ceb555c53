-- Concat and Add nodes whose inputs differ more than 20 times in range: one scale for both would leave the smaller one few codes
with slices as (
    select
        j.node, j.op_type, j.input_index, j.value, j.seen,
        coalesce(min(c.min), any_value(t.min) filter (where j.first_channel is null)) as least,
        coalesce(max(c.max), any_value(t.max) filter (where j.first_channel is null)) as greatest
    from joins j
    left join tensors t on t.tensor_id = j.tensor_id
    left join channels c
        on c.tensor_id = j.tensor_id and c.channel >= j.first_channel and c.channel < j.first_channel + j.channels
    group by all
),
magnitudes as (
    select
        *,
        case when seen = 'before Relu' then greatest(greatest, 0) else greatest(abs(least), abs(greatest)) end as magnitude
    from slices
),
inputs_known as (
    select
        node, op_type, count(*) as inputs, count(magnitude) as known,
        max(magnitude) as wide, min(magnitude) as narrow,
        arg_max(value, magnitude) as wide_input, arg_min(value, magnitude) as narrow_input,
        any_value(value) filter (where magnitude is null) as unknown_input
    from magnitudes
    where input_index is not null
    group by all
),
outputs as (
    select node, magnitude from magnitudes where input_index is null and seen = 'itself'
),
-- |a + b| <= |a| + |b|: where one input of an Add is not captured, its output and the other input bound it from below.
bounded as (
    select
        i.node, i.op_type, i.known < i.inputs as is_bound,
        case when i.known < i.inputs then i.unknown_input else i.wide_input end as wide_input,
        case when i.known < i.inputs then o.magnitude - i.wide else i.wide end as wide,
        case when i.known < i.inputs then i.wide_input else i.narrow_input end as narrow_input,
        case when i.known < i.inputs then i.wide else i.narrow end as narrow
    from inputs_known i
    left join outputs o on o.node = i.node
    where i.known >= 2 or (i.op_type = 'Add' and i.inputs = 2 and i.known = 1)
)
select
    node, op_type, case when narrow > 0 then round(wide / narrow, 1) else 'inf'::double end as ratio, is_bound, wide_input, wide,
    narrow_input, narrow
from bounded
where wide > 20 * narrow
order by ratio desc, node
