"""What lies under a lake: S3, mirrors of lakes in buckets, locks on directories. Knows nothing of recipes or artefacts."""
