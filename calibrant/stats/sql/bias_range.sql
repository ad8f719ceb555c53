-- Biases that leave int32 at the scale that the weight alone asks for, or come near it (more than half of the range)
with data_scales as (
    select fit, layer_id, scale from quant_params where role = 'data'
),
sized as (
    select
        b.layer_id, b.channel, b.value, w.abs_max, max(w.abs_max) over (partition by b.layer_id) as layer_max,
        abs(b.value) / (0.499 * 2147483647 * d.least) as most_scale
    from biases b
    join weights w on w.layer_id = b.layer_id and w.channel = b.channel
    join (select layer_id, min(scale::double) as least from data_scales group by all) d on d.layer_id = b.layer_id
    where b.value <> 0
),
-- Only weight scales at which a bias may leave half of int32 in some fit, and raised ones; the others are most rows by far.
scales as (
    select q.fit, q.layer_id, s.channel, s.value, q.bits, q.scale, q.decided_by, s.abs_max
    from quant_params q
    join sized s on s.layer_id = q.layer_id and s.channel = q.channel
    where q.role = 'weight' and q.channel is not null and (q.scale < s.most_scale or q.decided_by = 'bias range')
    union all
    select q.fit, q.layer_id, s.channel, s.value, q.bits, q.scale, q.decided_by, s.layer_max
    from quant_params q
    join sized s on s.layer_id = q.layer_id
    where q.role = 'weight' and q.channel is null and (q.scale < s.most_scale or q.decided_by = 'bias range')
),
-- The weight alone asks for its greatest magnitude over the greatest code; a raised scale is larger than that.
codes as (
    select
        s.fit, s.layer_id, s.channel, s.value as bias, d.scale as scale_d, s.scale as scale_w,
        coalesce(s.decided_by = 'bias range', false) as is_raised,
        abs(s.value) / (d.scale::double * s.scale) / 2147483647 as int32_used,
        abs(s.value) / (d.scale::double * case
            when s.decided_by = 'bias range' and s.abs_max > 0 then least(s.scale, s.abs_max / ((1 << (s.bits - 1)) - 1))
            else s.scale
        end) / 2147483647 as int32_wanted
    from scales s
    join data_scales d on d.fit = s.fit and d.layer_id = s.layer_id
)
select
    l.layer, c.channel, c.bias, round(c.int32_wanted, 3) as int32_wanted, round(c.int32_used, 3) as int32_used, c.is_raised,
    c.scale_d, c.scale_w, c.fit
from codes c
join layers l on l.layer_id = c.layer_id
where c.int32_wanted > 0.5 or c.is_raised
order by c.fit, c.int32_wanted desc, l.layer_id, c.channel
