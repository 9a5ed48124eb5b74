"""The sections that one job each makes; `fanout.reports.job` runs them."""
