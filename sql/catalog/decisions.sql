-- Decisions in force: of ingest and cleaning, and of the current version of curated_interactions and sft_dataset.
-- decisions_history has earlier versions too.
-- needs: artefacts, decisions_history
-- makes: view decisions (*)
create view decisions as
select *
from decisions_history
where stage in ('ingest', 'clean')
    or exists (
        from artefacts
        where artefacts.is_current
            and artefacts.kind = 'dataset'
            and artefacts.version = decisions_history.version
            and artefacts.workload = decisions_history.workload
            and artefacts.name = decisions_history.workload || '/' || case decisions_history.stage
                when 'curate' then 'curated_interactions'
                when 'dataset' then 'sft_dataset'
            end
    )
