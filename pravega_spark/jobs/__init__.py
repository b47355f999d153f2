"""What the package brings to keep streams in order: jobs for cron, a workflow, or spark-submit."""
