-- Two runs layer by layer (--against RUN2), fits of equal names: how the error of the data changed, greatest loss first
with here as (
    select l.layer, l.layer_id, q.fit, q.scale, q."offset", q.bits, q.clip_min, q.clip_max, q.sqnr_db, t.min, t.max
    from quant_params q
    join layers l on l.layer_id = q.layer_id
    join tensors t on t.tensor_id = q.tensor_id
    where q.role = 'data'
),
there as (
    select l.layer, l.layer_id, q.fit, q.scale, q."offset", q.bits, q.clip_min, q.clip_max, q.sqnr_db, t.min, t.max
    from against.quant_params q
    join against.layers l on l.layer_id = q.layer_id
    join against.tensors t on t.tensor_id = q.tensor_id
    where q.role = 'data'
)
select
    coalesce(a.layer, b.layer) as layer,
    case when b.layer is null then 'only here' when a.layer is null then 'only there' else 'both' end as quantized_in,
    round(b.sqnr_db - a.sqnr_db, 2) as change_db, round(a.sqnr_db, 2) as db_here, round(b.sqnr_db, 2) as db_there,
    round(b.scale / a.scale, 4) as scale_ratio, a.bits as bits_here, b.bits as bits_there,
    a.min as min_here, b.min as min_there, a.max as max_here, b.max as max_there, a.clip_min as clip_min_here,
    b.clip_min as clip_min_there, a.clip_max as clip_max_here, b.clip_max as clip_max_there, coalesce(a.fit, b.fit) as fit
from here a
full join there b on b.layer = a.layer and b.fit = a.fit
order by coalesce(a.fit, b.fit), change_db nulls first, coalesce(a.layer_id, b.layer_id)
