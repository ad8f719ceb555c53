-- Layers that stay in float, and why
select l.layer, l.op_type, coalesce(p.reason, l.reason) as reason, l.macs, p.fit
from layers l
left join plan p on p.layer_id = l.layer_id
where not l.quantizable or not coalesce(p.enabled, false)
order by p.fit, l.layer_id
