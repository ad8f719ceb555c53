-- Clip rate against gain: the share of values that clipping costs, and the dB of error that it saves against clipping nothing
with balanced as (
    select distinct fit, layer_id from balance
),
-- A balanced layer is searched on divided data, whose range no table has: its widest candidate stands for that.
candidates as (
    select
        s.fit, s.layer_id, s.tensor_id, s.loss, s.is_best, s.clip_max - s.clip_min as width, b.fit is not null as is_balanced,
        b.fit is null and s.clip_min <= t.min + s.scale / 2 and s.clip_max >= t.max - s.scale / 2 as covers
    from search s
    join tensors t on t.tensor_id = s.tensor_id
    left join balanced b on b.fit = s.fit and b.layer_id = s.layer_id
    where s.layer_id is not null and s.clip_min is not null
),
found as (
    select
        fit, layer_id, tensor_id, is_balanced,
        max(loss) filter (where is_best) as best_loss,
        max(width) filter (where is_best) as best_width,
        arg_min(loss, width) filter (where covers) as covering_loss,
        arg_max(loss, width) as widest_loss
    from candidates
    group by all
)
select
    l.layer, round(q.clip_rate, 7) as clip_rate,
    case
        when f.best_loss > 0 then round(10 * log10(coalesce(f.covering_loss, f.widest_loss) / f.best_loss), 2)
    end as gain_db,
    f.covering_loss is not null as is_against_whole_range,
    case when not f.is_balanced then round(f.best_width / nullif(t.max - t.min, 0), 4) end as range_share,
    q.clip_min, t.min, q.clip_max, t.max, q.algorithm, t.tensor, f.fit
from found f
join layers l on l.layer_id = f.layer_id
join tensors t on t.tensor_id = f.tensor_id
left join quant_params q on q.fit = f.fit and q.layer_id = f.layer_id and q.tensor_id = f.tensor_id and q.role = 'data'
order by f.fit, gain_db desc nulls last, l.layer_id
