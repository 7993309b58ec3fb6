"""Device placement: the least largest load on published graphs, beside what the published program finds."""
