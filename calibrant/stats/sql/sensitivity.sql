-- Every measurement of `calibrant sensitivity`, with its confidence interval over samples
select l.layer, s.view, s.metric, s.value, s.low, s.high, s.samples, s.fit
from sensitivity s
join layers l on l.layer_id = s.layer_id
order by s.fit, s.view, s.metric, s.value, l.layer_id
