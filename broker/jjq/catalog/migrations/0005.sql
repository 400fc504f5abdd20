-- Which run of its query has committed a batch, or was the last to bring it again; NULL where there is no query.
ALTER TABLE writer_batches ADD COLUMN run TEXT;
