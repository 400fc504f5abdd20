-- name: ephemeral_topics
SELECT name, config FROM topics WHERE config LIKE '%"ephemeral": true%' ORDER BY name
