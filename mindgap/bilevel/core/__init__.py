"""What methods and backends share: types, settings, schedules, steps, directions, estimators."""
