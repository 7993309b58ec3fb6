"""Study: mixed pipelines under the judge of Sailor, a planner for several kinds of GPU."""
