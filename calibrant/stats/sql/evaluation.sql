-- Accuracy of each model variant: the float model before, the quantized ones after
select variant, metric, value, samples, fit
from evaluation
order by fit, metric, variant
