batch.cancel()
