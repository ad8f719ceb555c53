-- Accuracy of each model variant: the float model before, the quantized ones after, with intervals over samples
select variant, output, metric, value, low, high, samples, data, fit
from evaluation
order by data, fit, output, metric, variant
