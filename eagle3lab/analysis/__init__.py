"""Floor 3: measuring, checking, estimating and drawing. Arrays and plain values in, values out."""
