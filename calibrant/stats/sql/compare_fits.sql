-- Fits side by side: the signal-to-quantization-noise ratio of each layer's data, and which fit is best
select
    l.layer, p.fit, p.algorithm, p.bits, p.scale, p."offset", round(p.sqnr_db, 2) as data_db, round(p.clip_rate, 7) as clip_rate,
    p.sqnr_db >= max(p.sqnr_db) over (partition by l.layer_id) as is_best
from quant_params p
join layers l on l.layer_id = p.layer_id
where p.role = 'data'
order by l.layer_id, p.sqnr_db desc, p.fit
