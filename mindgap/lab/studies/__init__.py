"""One claim a study: settings, visible loop, figure, pass rule."""
