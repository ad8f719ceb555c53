-- Tensors on which IFMR and HFMG disagree by more than a tenth of the scale, in fits of the same bits; positive gain: HFMG is better
with data as (
    select fit, layer_id, tensor_id, algorithm, bits, scale, "offset", clip_min, clip_max, sqnr_db
    from quant_params
    where role = 'data'
)
select
    l.layer, t.tensor, round(h.scale / i.scale, 3) as scale_ratio, round(h.sqnr_db - i.sqnr_db, 2) as hfmg_gain_db,
    round(i.sqnr_db, 2) as ifmr_db, round(h.sqnr_db, 2) as hfmg_db, i.clip_min as ifmr_min, i.clip_max as ifmr_max,
    h.clip_min as hfmg_min, h.clip_max as hfmg_max, t.min, t.max, i.fit as ifmr_fit, h.fit as hfmg_fit
from data i
join data h on h.layer_id = i.layer_id and h.tensor_id = i.tensor_id and h.bits = i.bits
join layers l on l.layer_id = i.layer_id
join tensors t on t.tensor_id = i.tensor_id
where i.algorithm = 'ifmr' and h.algorithm = 'hfmg' and (h.scale > 1.1 * i.scale or i.scale > 1.1 * h.scale)
order by abs(hfmg_gain_db) desc nulls last, l.layer_id, i.fit, h.fit
