-- Share of the activation values that the chosen range clips, greatest first
select
    l.layer, round(q.clip_rate, 7) as clip_rate, q.clip_min, t.min, q.clip_max, t.max, round(q.sqnr_db, 2) as data_db,
    q.algorithm, t.tensor, q.fit
from quant_params q
join layers l on l.layer_id = q.layer_id
join tensors t on t.tensor_id = q.tensor_id
where q.role = 'data'
order by q.fit, q.clip_rate desc, l.layer_id
